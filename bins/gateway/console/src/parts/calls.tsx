// The API calls that this page made, each as code for whoever wants to make it elsewhere.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { type Made, made, whenMade } from "../api.ts";
import { json } from "../format.ts";
import { Badge, Copy, Dialog } from "./basic.tsx";

type Language = "curl" | "TypeScript" | "Python";

const quoted = (text: string): string => `'${text.replace(/'/g, `'\\''`)}'`;

/// JSON as a Python literal.
const python = (value: unknown): string => json(value).replace(/^(\s*(?:"(?:[^"\\]|\\.)*": )?)(true|false|null)(,?)$/gm, (_, before, word, after) => before + { true: "True", false: "False", null: "None" }[word as string] + after);

function code({ method, path, body, form, streams }: Made, language: Language): string {
  const url = location.origin + path;
  const has = body !== undefined;
  if (form) return upload(url, method, form, language);
  if (language === "curl") return `curl ${streams ? "-N " : ""}-X ${method} ${quoted(url)} \\\n  -H "Authorization: Bearer $API_KEY"${has ? ` \\\n  -H 'Content-Type: application/json' \\\n  -d ${quoted(JSON.stringify(body))}` : ""}`;
  if (language === "TypeScript") {
    return `const answer = await fetch(${JSON.stringify(url)}, {\n  method: "${method}",\n  headers: { Authorization: \`Bearer \${process.env.API_KEY}\`${has ? `, "Content-Type": "application/json"` : ""} },${has ? `\n  body: JSON.stringify(${json(body).replace(/\n/g, "\n  ")}),` : ""}\n});\n${streams ? "for await (const text of answer.body.pipeThrough(new TextDecoderStream())) console.log(text);" : "console.log(await answer.json());"}`;
  }
  return `import os, requests\n\nanswer = requests.request(\n    "${method}", ${JSON.stringify(url)},\n    headers={"Authorization": f"Bearer {os.environ['API_KEY']}"},${has ? `\n    json=${python(body).replace(/\n/g, "\n    ")},` : ""}${streams ? "\n    stream=True," : ""}\n)\n${streams ? "for line in answer.iter_lines(decode_unicode=True):\n    print(line)" : "print(answer.json())"}`;
}

/// The same of a file, which the reader has under a name of their own.
function upload(url: string, method: string, { part, fields }: NonNullable<Made["form"]>, language: Language): string {
  const others = Object.entries(fields);
  if (language === "curl") return `curl -X ${method} ${quoted(url)} \\\n  -H "Authorization: Bearer $API_KEY"${others.map(([name, value]) => ` \\\n  -F ${quoted(`${name}=${value}`)}`).join("")} \\\n  -F ${quoted(`${part}=@file`)}`;
  if (language === "TypeScript") {
    return `import { openAsBlob } from "node:fs";\n\nconst form = new FormData();\n${others.map(([name, value]) => `form.append(${JSON.stringify(name)}, ${JSON.stringify(value)});\n`).join("")}form.append(${JSON.stringify(part)}, await openAsBlob("file"), "file");\nconst answer = await fetch(${JSON.stringify(url)}, {\n  method: "${method}",\n  headers: { Authorization: \`Bearer \${process.env.API_KEY}\` },\n  body: form,\n});\nconsole.log(await answer.json());`;
  }
  return `import os, requests\n\nanswer = requests.request(\n    "${method}", ${JSON.stringify(url)},\n    headers={"Authorization": f"Bearer {os.environ['API_KEY']}"},\n    data=${json(fields)},\n    files={${JSON.stringify(part)}: open("file", "rb")},\n)\nprint(answer.json())`;
}

export function Calls({ close }: { close: () => void }): JSX.Element {
  const [language, setLanguage] = useState<Language>("curl");
  const [shown, setShown] = useState<Made | null>(made[0] ?? null);
  const [, redraw] = useState(0);
  useEffect(() => (whenMade(() => redraw((turn) => turn + 1)), () => whenMade(() => undefined)), []);
  return (
    <Dialog title="API calls of this page" close={close} wide>
      <div class="calls">
        <ol tabIndex={0} aria-label="Calls">{made.map((one, i) => (
          <li key={i}><button type="button" class="quiet" aria-pressed={one === shown} onClick={() => setShown(one)}><Badge of={one.status} /> {one.method} {one.path} <small>{one.ms} ms</small></button></li>
        ))}</ol>
        {shown && (
          <div>
            <div class="row">
              {(["curl", "TypeScript", "Python"] as const).map((one) => <button key={one} type="button" aria-pressed={one === language} onClick={() => setLanguage(one)}>{one}</button>)}
              <Copy text={code(shown, language)} />
            </div>
            <pre class="json" tabIndex={0}>{code(shown, language)}</pre>
            <small>Request <code>{shown.requestId}</code></small>
          </div>
        )}
      </div>
    </Dialog>
  );
}
