// The question before an action: it names what will be done, and to what.
//
// A question is {title, text, confirm, danger, fields, preview, run, done}:
//   text      what will happen, in words; or a function of the preview's answer
//   fields    [{name, label, type, value, ...}], whose values `run` and `preview` get
//   preview   an async dry run, asked again when a field changes; the action waits for its answer
//   allowed   a function of the preview's answer: whether there is anything to do
//   run       the action, with what was previewed; what it throws is shown, and nothing is closed
//   done      what to say afterwards: text, or a function of run's answer
import { useApp } from "../context.js";
import { html, useEffect, useRef, useState } from "../html.js";

export function Confirmation({ question, onClose }) {
  const { say } = useApp();
  const dialog = useRef(null);
  const [values, setValues] = useState(() => Object.fromEntries((question.fields || []).map((field) => [field.name, field.value])));
  const [busy, setBusy] = useState(false);
  const [trouble, setTrouble] = useState(null);
  const [found, lookAgain] = usePreview(question, values, setTrouble);
  useEffect(() => dialog.current.showModal(), []);

  const act = async (event) => {
    event.preventDefault();
    setBusy(true);
    setTrouble(null);
    try {
      const answer = await question.run(values, found);
      say(typeof question.done === "function" ? question.done(answer) : question.done);
      dialog.current.close();
    } catch (problem) {
      setTrouble(problem.message);
      lookAgain();
    } finally {
      setBusy(false);
    }
  };

  const waiting = question.preview && found === null && !trouble;
  const allowed = !question.preview || (found !== null && (!question.allowed || question.allowed(found)));
  const words = typeof question.text === "function" ? !waiting && found !== null && question.text(found, values) : question.text;
  return html`<dialog ref=${dialog} class="confirm" aria-labelledby="confirm-title" aria-describedby="confirm-text" onClose=${onClose}>
    <form onSubmit=${act}>
      <h2 id="confirm-title">${question.title}</h2>
      <div id="confirm-text">
        ${waiting && html`<p class="muted" role="status">Counting what this would change…</p>`}
        ${words}
      </div>
      ${(question.fields || []).map((field) => html`<${Field} key=${field.name} field=${field} value=${values[field.name]}
        onChange=${(value) => setValues({ ...values, [field.name]: value })} />`)}
      ${trouble && html`<p class="trouble" role="alert">${trouble}</p>`}
      <div class="buttons">
        <button type="button" class="quiet" onClick=${() => dialog.current.close()}>Leave it</button>
        <button type="submit" class=${question.danger ? "danger" : "primary"} disabled=${busy || !allowed} data-testid="confirm">
          ${busy ? "Working…" : question.confirm}
        </button>
      </div>
    </form>
  </dialog>`;
}

function usePreview(question, values, setTrouble) {
  const [found, setFound] = useState(null);
  const [round, setRound] = useState(0);
  useEffect(() => {
    if (!question.preview) return undefined;
    let current = true;
    setFound(null);
    question.preview(values).then(
      (answer) => current && setFound(answer),
      (problem) => current && setTrouble(problem.message),
    );
    return () => { current = false; };
  }, [JSON.stringify(values), round]);
  return [found, () => setRound((before) => before + 1)];
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
      ${options.map((option) => html`<option key=${option} value=${option} selected=${option === value}>${option}</option>`)}</select>
        </label>`;
  }
  return html`<label class="field"><span>${label}</span><input type=${type} name=${name} value=${value} required ...${rest}
    onInput=${(event) => onChange(event.target.value)} />${hint && html`<small class="muted">${hint}</small>`}</label>`;
}
