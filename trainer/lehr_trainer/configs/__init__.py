"""The config of each technique: pure Pydantic, one small file each, no torch.

``lehr_trainer.configs.train`` puts them together into ``TrainConfig``.
"""
