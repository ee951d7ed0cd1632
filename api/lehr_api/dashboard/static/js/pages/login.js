/** Select the token field after an error. The form itself works without JavaScript. */

import { byId } from "../dom.js";

/** @type {HTMLInputElement} */ (byId("token")).select();
