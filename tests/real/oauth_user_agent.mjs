/** What a user does in a browser: reads the page, fills in the form, is sent back. */
export async function logIn(base, address, email, password) {
  const page = await fetch(address);
  if (page.status !== 200) throw new Error(`the page answers with ${page.status}: ${await page.text()}`);
  const fields = new URLSearchParams();
  for (const [input] of (await page.text()).matchAll(/<input type="hidden"[^>]*>/g)) {
    const value = input.match(/value="([^"]*)"/)[1];
    fields.set(input.match(/name="([^"]*)"/)[1], value.replace(/&#39;/g, "'").replace(/&quot;/g, '"').replace(/&amp;/g, "&"));
  }
  fields.set("email", email);
  fields.set("password", password);
  fields.set("decision", "allow");
  const sent = await fetch(`${base}/oauth/authorize`, { method: "POST", body: fields, redirect: "manual" });
  if (sent.status !== 303) throw new Error(`the form answers with ${sent.status}: ${await sent.text()}`);
  return new URL(sent.headers.get("location"));
}
