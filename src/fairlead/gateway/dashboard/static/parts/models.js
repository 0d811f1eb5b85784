// The models of services with OpenAI's protocol: how fast they answer.
import { duration, number } from "../format.js";
import { html } from "../html.js";

/** `models` are pairs of a key and the figures of a model. */
export function Models({ models }) {
  if (models.length === 0) return null;
  return html`<section class="card" data-testid="models"><h2>Models, last 5 min</h2>
    <div class="table-box" tabindex="0" role="region" aria-label="Models"><table class="rows"><caption class="hidden">Tokens and times to the first token by model</caption>
      <thead><tr><th scope="col">Model</th><th scope="col" class="n">Requests</th>
        <th scope="col" class="n" title="output tokens of all requests together">Tokens/s</th>
        <th scope="col" class="n" title="output tokens of one request, after its first token">Tokens/s per request</th>
        <th scope="col" class="n" title="from the call of the model to the first token of a stream">First token</th></tr></thead>
      <tbody>${models.map(([name, model]) => html`<tr key=${name}>
        <td data-label="Model" class="clip">${name}</td>
        <td class="n" data-label="Requests">${number(model.calls)}</td>
        <td class="n" data-label="Tokens/s">${number(model.tokens_per_second)}</td>
        <td class="n" data-label="Tokens/s per request">${number(model.request_tokens_per_second)}</td>
        <td class="n" data-label="First token">${short(model.first_token_p50)}<small class="muted"> p95 ${short(model.first_token_p95)}</small></td>
      </tr>`)}</tbody></table></div></section>`;
}

const short = (seconds) => (seconds < 1 ? `${Math.round(seconds * 1000)} ms` : duration(seconds));
