/** The form works without a module; this puts the cursor back where it is needed after an error. */

import { byId } from "../dom.js";

/** @type {HTMLInputElement} */ (byId("token")).select();
