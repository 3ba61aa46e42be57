"""Amazon Bedrock: the Converse API."""
