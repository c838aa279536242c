(function () {
  var root = document.documentElement;
  document.getElementById("theme").addEventListener("click", function () {
    var dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
  document.querySelectorAll(".filter").forEach(function (field) {
    var sites = field.closest("section").querySelectorAll("details.site");
    field.addEventListener("input", function () {
      var wanted = field.value.toLowerCase();
      sites.forEach(function (site) {
        site.hidden = site.textContent.toLowerCase().indexOf(wanted) < 0;
      });
    });
  });
})();
