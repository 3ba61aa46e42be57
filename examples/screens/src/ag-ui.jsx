import { createRoot } from "react-dom/client";
import { session } from "./address.js";
import { AgUiSession } from "./ag-ui-session.jsx";

createRoot(document.getElementById("root")).render(<AgUiSession session={session} />);
