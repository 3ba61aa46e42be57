import { createRoot } from "react-dom/client";
import { session } from "./address.js";
import { AiSdkSession } from "./ai-sdk-session.jsx";

createRoot(document.getElementById("root")).render(<AiSdkSession session={session} />);
