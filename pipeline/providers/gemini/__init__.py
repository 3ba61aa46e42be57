"""Google Gemini: the generateContent API."""
