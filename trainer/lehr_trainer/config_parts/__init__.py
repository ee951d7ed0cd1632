"""The config of each technique: pure Pydantic, one small file each, no torch.

``lehr_trainer.config`` puts them together into ``TrainConfig``.
"""
