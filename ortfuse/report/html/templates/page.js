(function () {
  var root = document.documentElement;
  var button = document.getElementById("theme"), system = matchMedia("(prefers-color-scheme: dark)");
  function isDark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
  }
  function tell() {
    button.setAttribute("aria-pressed", isDark());
  }
  button.addEventListener("click", function () {
    root.dataset.theme = isDark() ? "light" : "dark";
    tell();
  });
  system.addEventListener("change", tell);
  tell();
  function middle(figure) {
    figure.scrollLeft = (figure.scrollWidth - figure.clientWidth) / 2;
  }
  document.querySelectorAll("figure").forEach(middle);
  document.querySelectorAll("details.site").forEach(function (site) {
    site.addEventListener("toggle", function () {
      site.querySelectorAll("figure").forEach(middle);
    });
  });
  document.querySelectorAll(".filter").forEach(function (field) {
    var section = field.closest("section"), sites = section.querySelectorAll("details.site");
    field.addEventListener("input", function () {
      var wanted = field.value.toLowerCase(), shown = 0;
      sites.forEach(function (site) {
        site.hidden = site.textContent.toLowerCase().indexOf(wanted) < 0;
        shown += !site.hidden;
      });
      section.querySelector(".found").textContent = wanted ? shown + " of " + sites.length : "";
    });
  });
})();
