// What every page needs: the session, the socket, confirmation dialogs and notifications.
import { createContext, useContext } from "./html.js";

export const Context = createContext(null);

/** `{session, live, ask, notify}` */
export const useApp = () => useContext(Context);

/** What each role may see, as in the gateway: a user's key its own jobs and batches, a service's key the queue too. */
const VISIBILITY = {
  own: () => true,
  queue: ({ role }) => role === "admin" || role === "viewer" || role === "service",
  all: ({ role }) => role === "admin" || role === "viewer",
};

export const sees = (session, what) => VISIBILITY[what](session);

/** Whether to offer actions that affect all users. */
export const mayOperate = (session) => session.may_act && session.role === "admin";
