/** ESLint: the recommended rules, and those against mistakes that no type checker sees. */

import js from "@eslint/js";
import globals from "globals";

const DASHBOARD = ["api/lehr_api/dashboard/static/js/**/*.js"];

export default [
  { linterOptions: { reportUnusedDisableDirectives: "error" } },
  js.configs.recommended,
  {
    rules: {
      "array-callback-return": "error",
      "consistent-return": "error",
      eqeqeq: "error",
      "no-alert": "error",
      "no-console": ["error", { allow: ["error"] }],
      "no-else-return": "error",
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-new-func": "error",
      "no-param-reassign": "error",
      "no-promise-executor-return": "error",
      "no-self-compare": "error",
      "no-shadow": "error",
      "no-template-curly-in-string": "error",
      "no-throw-literal": "error",
      "no-unreachable-loop": "error",
      "no-unused-expressions": "error",
      "no-use-before-define": ["error", { functions: false, variables: false }],
      "no-var": "error",
      "object-shorthand": "error",
      "prefer-const": "error",
      "prefer-template": "error",
      "require-atomic-updates": ["error", { allowProperties: true }],
    },
  },
  {
    files: DASHBOARD,
    languageOptions: { globals: globals.browser },
    rules: {
      // A text that fills its line is not divided: it could not be found by a search.
      "max-len": ["error", { code: 120, ignoreRegExpLiterals: true, ignorePattern: '^[^"`()[\\]{}]*["`].*["`][;,)]*$' }],
    },
  },
  { files: ["tests/javascript/**/*.js"], languageOptions: { globals: globals.node } },
];
