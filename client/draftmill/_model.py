"""The base of every wire model: unknown fields are refused, instances are immutable."""

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings", use_attribute_docstrings=True)
