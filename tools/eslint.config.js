// Faults that the type checker does not see. Formatting is nobody's concern here.
import js from "@eslint/js";
import globals from "globals";

export default [
  js.configs.recommended,
  {
    languageOptions: { ecmaVersion: 2022, sourceType: "module", globals: globals.browser },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      "consistent-return": "error",
      "eqeqeq": "error",
      "no-restricted-globals": ["error", "event", "find", "name", "status", "top", "open", "close", "print", "stop", "length"],
      "no-restricted-properties": ["error", ...["innerHTML", "outerHTML"].map((property) => ({ property, message: "Set text with make(): a name may contain markup." }))],
      "no-shadow": "error",
      "no-unused-expressions": ["error", { allowTernary: true, allowShortCircuit: true }],
      "no-var": "error",
      "prefer-const": "error",
    },
  },
];
