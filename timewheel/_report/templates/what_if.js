"use strict";
// Finds the cheapest candidate for the sliders' values. The arithmetic has the same order as tests/support/what_if.py:
// a test compares the two.
(() => {
  const place = document.getElementById("what-if");
  if (!place) return;

  const all = JSON.parse(document.getElementById("what-if-statistic").textContent);
  const options = all.options.map((row) => Object.fromEntries(row.map((value, at) => [all.fields[at], value])));

  function at(number, setting) {
    const one = options[number], growth = setting.growth, silent = all.silence_seconds;
    const allowed = setting.gap_fraction / one.margin * all.limit_ranges;
    const byGaps = Math.ceil(one.gaps * growth / allowed - all.slack);
    const bySilence = silent === null ? 1 : Math.ceil(one.silence * growth / silent - all.slack);
    const partitions = Math.min(Math.max(byGaps, bySilence, 1), all.max_partitions);
    const gaps = Math.max(one.gaps * growth / partitions, one.stuck * growth);
    const topics = one.dead_letters + one.topics * partitions;
    const breaks = [
      gaps > allowed * (1 + all.slack),
      silent !== null && one.silence * growth / partitions > silent * (1 + all.slack),
      all.partition_topics !== null && topics > all.partition_topics,
      one.late_above !== null && growth > one.late_above,
      one.full_above !== null && growth > one.full_above,
      one.cursor_bytes * growth / partitions > all.frame_bytes,
    ];
    const cost = one.written * growth + setting.topic_price * topics + all.relay_price * one.relay;
    return { option: number, partitions, gaps: gaps * one.share, topics, cost, broken: one.broken + breaks.filter(Boolean).length };
  }

  function cheapest(setting) {
    const every = [];
    options.forEach((one, number) => {
      if (!setting.window_ms || one.window_ms === setting.window_ms) every.push(at(number, setting));
    });
    const better = (a, b) => a.broken - b.broken || a.cost - b.cost
      || options[a.option].gaps - options[b.option].gaps || a.option - b.option;
    const best = every.reduce((a, b) => (better(b, a) < 0 ? b : a));
    const own = every.find((one) => one.option === all.recommended);
    return own && own.broken === best.broken && own.cost <= best.cost * all.same ? own : best;
  }

  const sliders = [...place.querySelectorAll("input")];
  const stop = (slider, name) => JSON.parse(slider.dataset[name])[slider.value];
  const setting = () => Object.fromEntries(sliders.map((slider) => [slider.dataset.name, stop(slider, "stops")]));
  const whole = (value) => Math.round(value).toLocaleString("en-US");
  const parted = (number) => (number === 1 ? "one partition" : `${number} partitions`);
  const plan = (found) => `${options[found.option].name} on ${parted(found.partitions)}`;

  const texts = {
    plan: (found) => options[found.option].name,
    partitions: (found) => whole(found.partitions),
    gaps: (found) => whole(found.gaps),
    topics: (found) => whole(found.topics),
    cost: (found) => found.cost.toLocaleString("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 }),
    broken: (found) => (found.broken ? whole(found.broken) : "none"),
  };

  function sentence(best, own) {
    const head = best.broken ? "No plan keeps every limit here; fewest are broken by " : "Cheapest here: ";
    if (best.option === own.option) return `${head}${plan(best)}. That is the recommended plan.`;
    if (own.broken > best.broken) return `${head}${plan(best)}. The recommended plan would break limits.`;
    const more = own.cost / best.cost - 1;
    const difference = more >= 0.0005 ? `${(100 * more).toFixed(1)} % more` : "as much";
    return `${head}${plan(best)}. The recommended plan, on ${parted(own.partitions)}, would cost ${difference}.`;
  }

  function show() {
    for (const slider of sliders) {
      const text = stop(slider, "texts");
      slider.previousElementSibling.textContent = text;
      slider.setAttribute("aria-valuetext", text);
    }
    const asked = setting(), best = cheapest(asked), own = at(all.recommended, asked);
    place.querySelector(".found").textContent = sentence(best, own);
    for (const name of Object.keys(texts)) {
      place.querySelector(`[data-best=${name}]`).textContent = texts[name](best);
      place.querySelector(`[data-own=${name}]`).textContent = texts[name](own);
    }
  }

  for (const slider of sliders) slider.addEventListener("input", show);
  place.querySelector("button").addEventListener("click", () => {
    for (const slider of sliders) slider.value = slider.defaultValue;
    show();
  });
  // For inspection from the browser's console.
  window.whatIf = { cheapest, setting };
  place.hidden = false;
  show();
})();
