// Which rows of a long list are in sight: only those are drawn, between two empty rows as tall as the rest.
import { useEffect, useRef, useState } from "../html.js";

const SPARE = 12; // rows drawn beyond the window, so that a fast scroll does not show white

/** {ref, from, to}: put `ref` on the body of the list, and draw rows[from:to], each `height` pixels tall. */
export function useVisible(count, height) {
  const ref = useRef(null);
  const [range, setRange] = useState([0, 60]);
  useEffect(() => {
    let asked = 0;
    const measure = () => {
      asked = 0;
      if (!ref.current) return;
      const above = -ref.current.getBoundingClientRect().top;
      const from = Math.max(0, Math.floor(above / height) - SPARE);
      const to = Math.min(count, Math.ceil((above + window.innerHeight) / height) + SPARE);
      setRange((before) => (before[0] === from && before[1] === to ? before : [from, Math.max(from, to)]));
    };
    const ask = () => {
      asked ||= requestAnimationFrame(measure);
    };
    measure();
    window.addEventListener("scroll", ask, { passive: true });
    window.addEventListener("resize", ask);
    return () => {
      cancelAnimationFrame(asked);
      window.removeEventListener("scroll", ask);
      window.removeEventListener("resize", ask);
    };
  }, [count, height]);
  return { ref, from: Math.min(range[0], count), to: Math.min(range[1], count) };
}
