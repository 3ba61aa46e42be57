import { createRoot } from "react-dom/client";
import { session } from "./address.js";
import { AgUiSession } from "./ag-ui-session.jsx";
import { AiSdkSession } from "./ai-sdk-session.jsx";

createRoot(document.getElementById("root")).render(
  <div className="columns">
    <AgUiSession session={session} />
    <AiSdkSession session={session} />
  </div>,
);
