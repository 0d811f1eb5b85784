// The confirmation dialog of an action.
//
// A question is {title, text, confirm, danger, fields, preview, run, done}:
//   text      what will happen; or a function of the preview and the fields' values
//   fields    [{name, label, type, value, ...}]; `run` and `preview` receive their values. Options are texts or [value, text]
//   preview   an async dry run, repeated when a field changes; the action waits for it
//   allowed   a function of the preview: whether there is anything to do
//   run       the action, with the preview; an exception is shown, and the dialog stays open
//   done      the message afterwards: text, or a function of run's result
import { useApp } from "../context.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../html.js";

export function Confirmation({ question, onClose }) {
  const { notify } = useApp();
  const dialog = useRef(null);
  const [values, setValues] = useState(() => Object.fromEntries((question.fields || []).map((field) => [field.name, field.value])));
  const [busy, setBusy] = useState(false);
  const [failure, setFailure] = useState(null);
  const [preview, refresh] = usePreview(question, values, setFailure);
  // A question about one page must not be answered on another. A layout effect, so that no change of the address is missed.
  useLayoutEffect(() => {
    dialog.current.showModal();
    const left = () => dialog.current?.close();
    window.addEventListener("hashchange", left);
    return () => window.removeEventListener("hashchange", left);
  }, []);

  const act = async (event) => {
    event.preventDefault();
    setBusy(true);
    setFailure(null);
    try {
      const result = await question.run(values, preview);
      notify(typeof question.done === "function" ? question.done(result) : question.done);
      dialog.current.close();
    } catch (problem) {
      setFailure(problem.message);
      refresh();
    } finally {
      setBusy(false);
    }
  };

  const waiting = question.preview && preview === null && !failure;
  const allowed = !question.preview || (preview !== null && (!question.allowed || question.allowed(preview)));
  const ready = !question.preview || (!waiting && preview !== null);
  const words = typeof question.text === "function" ? ready && question.text(preview, values) : question.text;
  return html`<dialog ref=${dialog} class="confirm" aria-labelledby="confirm-title" aria-describedby="confirm-text" onClose=${onClose}>
    <form onSubmit=${act}>
      <h2 id="confirm-title">${question.title}</h2>
      <div id="confirm-text">
        ${waiting && html`<p class="muted" role="status">Counting the jobs…</p>`}
        ${words}
      </div>
      ${(question.fields || []).map((field) => html`<${Field} key=${field.name} field=${field} value=${values[field.name]}
        onChange=${(value) => setValues({ ...values, [field.name]: value })} />`)}
      ${failure && html`<p class="trouble" role="alert">${failure}</p>`}
      <div class="buttons">
        <button type="button" class="quiet" onClick=${() => dialog.current.close()}>Keep as is</button>
        <button type="submit" class=${question.danger ? "danger" : "primary"} disabled=${busy || !allowed} data-testid="confirm">
          ${busy ? "Working…" : question.confirm}
        </button>
      </div>
    </form>
  </dialog>`;
}

function usePreview(question, values, setFailure) {
  const [preview, setPreview] = useState(null);
  const [round, setRound] = useState(0);
  useEffect(() => {
    if (!question.preview) return undefined;
    let current = true;
    setPreview(null);
    question.preview(values).then(
      (result) => current && setPreview(result),
      (problem) => current && setFailure(problem.message),
    );
    return () => { current = false; };
  }, [JSON.stringify(values), round]);
  return [preview, () => setRound((before) => before + 1)];
}

function Field({ field, value, onChange }) {
  const { label, type, options, name, hint, value: _, ...rest } = field;
  if (type === "checkbox") {
    return html`<label class="check">
      <input type="checkbox" name=${name} checked=${value} onChange=${(event) => onChange(event.target.checked)} /> ${label}</label>`;
  }
  if (type === "select") {
    return html`<label class="field"><span>${label}</span>
      <select name=${name} value=${value} onChange=${(event) => onChange(event.target.value)}>
      ${options.map((option) => (Array.isArray(option) ? option : [option, option])).map(([key, words]) => html`<option key=${key} value=${key}
        selected=${key === value}>${words}</option>`)}</select>
        </label>`;
  }
  return html`<label class="field"><span>${label}</span><input type=${type} name=${name} value=${value} required ...${rest}
    onInput=${(event) => onChange(event.target.value)} />${hint && html`<small class="muted">${hint}</small>`}</label>`;
}
