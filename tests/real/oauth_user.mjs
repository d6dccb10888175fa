// A user in a browser: follows an address and all redirects, with cookies. Arguments: address.
let [, , address] = process.argv;
const cookies = new Map();
for (let hops = 0; hops < 20; hops += 1) {
  const { host } = new URL(address);
  const own = [...cookies].filter(([name]) => name.startsWith(`${host} `));
  const cookie = own.map(([name, value]) => `${name.split(" ")[1]}=${value}`).join("; ");
  const answer = await fetch(address, { redirect: "manual", headers: { cookie } });
  for (const set of answer.headers.getSetCookie()) {
    const [, name, value] = /^([^=]+)=([^;]*)/.exec(set);
    cookies.set(`${host} ${name}`, value);
  }
  const location = answer.headers.get("location");
  if (!location) {
    console.log(JSON.stringify({ status: answer.status, path: new URL(address).pathname }));
    break;
  }
  address = new URL(location, address).href;
}
