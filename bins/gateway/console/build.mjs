// Bundles the console into `dist`, where the gateway takes it from. `node build.mjs <folder>` writes elsewhere.
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const folder = process.argv[2] ?? "dist";
const { outputFiles } = await build({
  entryPoints: { console: "src/main.tsx" },
  outdir: "out",
  bundle: true,
  minify: true,
  write: false,
  format: "esm",
  target: ["chrome120", "firefox121", "safari17"],
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "eof",
  charset: "utf8",
});
await mkdir(folder, { recursive: true });
const page = { path: "console.html", contents: await readFile("src/console.html") };
for (const { path, contents } of [page, ...outputFiles]) {
  const name = path.split("/").at(-1);
  const packed = gzipSync(contents, { level: 9 });
  await writeFile(`${folder}/${name}.gz`, packed);
  console.log(`${name}: ${contents.length} bytes, ${packed.length} compressed`);
}
