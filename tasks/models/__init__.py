from tasks.models.resolve import model_folder, prepare_model

__all__ = ["model_folder", "prepare_model"]
