// A button on each block of code that copies it; of a session in a shell the commands alone.
document.addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll(".highlight-python, .highlight-sh, .highlight-py, .highlight-console")) {
    const button = document.createElement("button");
    button.className = "copy";
    button.textContent = "copy";
    button.setAttribute("aria-label", "Copy this code");
    button.addEventListener("click", async () => {
      const lines = block.querySelector("pre").textContent.split("\n");
      const commands = lines.filter((line) => line.startsWith("$ ")).map((line) => line.slice(2));
      await navigator.clipboard.writeText((commands.length ? commands : lines).join("\n"));
      button.textContent = "copied";
      setTimeout(() => (button.textContent = "copy"), 1500);
    });
    block.append(button);
  }
});
