// The actions of schedules.
import { call, path } from "./api.js";
import { text } from "./format.js";
import { html } from "./html.js";

const titleOf = (schedule) => text(schedule.name) || schedule.id;

export const pauseSchedule = (schedule) => ({
  title: "Pause this schedule?",
  text: html`<p><b class="wrap">${titleOf(schedule)}</b> submits nothing until it is resumed. Its open jobs go on.</p>`,
  confirm: "Pause the schedule",
  danger: true,
  run: () => call("POST", path`/api/v1/schedules/${schedule.id}/pause`),
  done: "The schedule is paused.",
});

export const resumeSchedule = (schedule) => ({
  title: "Resume this schedule?",
  text: html`<p><b class="wrap">${titleOf(schedule)}</b> submits jobs again. What was due meanwhile is not submitted.</p>`,
  confirm: "Resume the schedule",
  run: () => call("POST", path`/api/v1/schedules/${schedule.id}/resume`),
  done: "The schedule is resumed.",
});

export const runSchedule = (schedule) => ({
  title: "Run this schedule now?",
  text: html`<p>A job for <b class="wrap">${text(schedule.feature_name)}</b> is submitted now, besides those that are due.</p>`,
  confirm: "Run it now",
  run: () => call("POST", path`/api/v1/schedules/${schedule.id}/run`),
  done: ({ job_id: id }) => `Submitted job ${id}.`,
});
