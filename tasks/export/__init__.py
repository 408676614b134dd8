"""The export stage: GGUF files of the trained model, proved through llama.cpp before they are released."""
