// The output of a running job, as its steps emit it.
import { path } from "../api.js";
import { text } from "../format.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { isRequest, textOf } from "./events.js";

const MOST = 50_000; // characters that are shown, the last ones

/** Chunks by step, so that a restart can discard those of a step and of later ones. */
class Kept {
  steps = new Map();

  /** `hasEvents`: the chunks are events of a stream, of which only the text is shown. */
  constructor(hasEvents) {
    this.hasEvents = hasEvents;
  }

  add({ step_index: step, data }) {
    const shown = typeof data !== "string" ? `${JSON.stringify(data)}\n` : this.hasEvents ? textOf(data) : data;
    this.steps.set(step, ((this.steps.get(step) || "") + shown).slice(-MOST));
  }

  restart({ step_index: from }) {
    for (const step of [...this.steps.keys()]) if (step >= from) this.steps.delete(step);
  }

  get shown() {
    return [...this.steps].sort(([one], [other]) => one - other).map(([, each]) => each).join("\n").slice(-MOST);
  }
}

export function Output({ job }) {
  const [output, setOutput] = useState("");
  const [wanted, setWanted] = useState(false);
  const box = useRef(null);
  const { job_id: jobId, status } = job;
  const hasEvents = isRequest(job);
  useEffect(() => setWanted((before) => before || status === "RUNNING"), [status]);
  useEffect(() => {
    if (!wanted) return undefined;
    const kept = new Kept(hasEvents);
    let frame = null;
    const show = () => {
      frame ??= requestAnimationFrame(() => {
        frame = null;
        setOutput(kept.shown);
      });
    };
    const source = new EventSource(path`/api/v1/jobs/${jobId}/output`);
    const on = (kind, change) => source.addEventListener(kind, (event) => {
      change(JSON.parse(event.data));
      show();
    });
    on("chunk", (chunk) => kept.add(chunk));
    on("restart", (restart) => kept.restart(restart));
    on("end", () => source.close());
    return () => {
      source.close();
      cancelAnimationFrame(frame);
    };
  }, [wanted, jobId, hasEvents]);
  useEffect(() => {
    if (box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [output]);
  if (!output) return null;
  return html`<section class="card"><h2>Output</h2>
    <pre tabindex="0" class="output" aria-label="Output" data-testid="output" ref=${box}>${text(output)}</pre></section>`;
}
