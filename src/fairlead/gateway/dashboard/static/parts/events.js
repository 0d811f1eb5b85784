// The text in a stream of OpenAI's events.

/** Whether a job is a streamed request of the OpenAI front, whose output is events. */
export const isRequest = ({ input_data: input }) => Boolean(input?.stream && input.path && input.content_type);

/** The text that the events in a chunk add. A chunk has complete events. */
export function textOf(chunk) {
  return chunk.split(/\r\n|\n|\r/).filter((line) => line.startsWith("data:")).map((line) => {
    try {
      return addedBy(JSON.parse(line.slice(5)));
    } catch {
      return ""; // [DONE]
    }
  }).join("");
}

function addedBy(event) {
  if (event.error) return `\n${event.error.message ?? JSON.stringify(event.error)}\n`;
  if (typeof event.delta === "string" && event.type?.endsWith(".delta")) return event.delta;
  const choice = event.choices?.find((each) => (each.index ?? 0) === 0);
  if (!choice) return "";
  const { reasoning_content: thought, content, refusal, tool_calls: calls } = choice.delta ?? {};
  const called = (calls ?? []).map(({ function: call }) => `${call?.name ? `\n${call.name}: ` : ""}${call?.arguments ?? ""}`);
  return [choice.text, thought, content, refusal, ...called].filter((each) => typeof each === "string").join("");
}
