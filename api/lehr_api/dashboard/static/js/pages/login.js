/** Select the token field after an error. The form itself works without JavaScript. */

// The page of a login link asks for no token.
/** @type {HTMLInputElement | null} */ (document.getElementById("token"))?.select();

export {};
