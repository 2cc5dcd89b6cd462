// Everything that every page has. No build step: these are the modules as they are.
import { startLive } from "./live.js";
import { startTheme } from "./theme.js";
import { startPalette } from "./palette.js";
import { startKeys } from "./keys.js";
import { startGraph } from "./graph.js";
import { startMoment } from "./moment.js";
import { startCharts } from "./chart.js";
import { startForms } from "./forms.js";

startTheme();
startPalette();
startKeys();
startForms();
startMoment();
startGraph();
startCharts();
startLive();
document.documentElement.dataset.ready = "yes";
