// Virtual scrolling: only visible rows are rendered, between two spacers.
import { useEffect, useRef, useState } from "../html.js";

const SPARE = 12; // rows rendered beyond the window, so that fast scrolling shows no gaps

/** {ref, from, to}: put `ref` on the body of the list, and render rows[from:to], each `height` pixels tall. */
export function useVisible(count, height) {
  const ref = useRef(null);
  const [range, setRange] = useState([0, 60]);
  useEffect(() => {
    let frame = 0;
    const measure = () => {
      frame = 0;
      if (!ref.current) return;
      const above = -ref.current.getBoundingClientRect().top;
      const from = Math.max(0, Math.floor(above / height) - SPARE);
      const to = Math.min(count, Math.ceil((above + window.innerHeight) / height) + SPARE);
      setRange((before) => (before[0] === from && before[1] === to ? before : [from, Math.max(from, to)]));
    };
    const schedule = () => {
      frame ||= requestAnimationFrame(measure);
    };
    measure();
    window.addEventListener("scroll", schedule, { passive: true });
    window.addEventListener("resize", schedule);
    return () => {
      cancelAnimationFrame(frame);
      window.removeEventListener("scroll", schedule);
      window.removeEventListener("resize", schedule);
    };
  }, [count, height]);
  return { ref, from: Math.min(range[0], count), to: Math.min(range[1], count) };
}
