const page = document.getElementById("app");
const code = new URLSearchParams(location.hash.slice(1)).get("code");

function show(text) {
  page.replaceChildren(Object.assign(document.createElement("p"), { textContent: text }));
}

async function signIn() {
  history.replaceState(null, "", location.pathname);
  const body = JSON.stringify({ code });
  const answer = await fetch("/v1/login", { method: "POST", headers: { "content-type": "application/json" }, body });
  const login = await answer.json();
  if (!answer.ok) return show(login.message);
  sessionStorage.setItem("token", login.token);
  show(`Signed in as ${login.name}.`);
}

if (code) signIn();
else show("Run `acp-gateway console` for a link that signs in.");
