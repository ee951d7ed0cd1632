/** The page of an address that there is not: the links at the top work. */

import { installPage } from "../page.js";

installPage();
