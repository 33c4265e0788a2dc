"""`NodeSamplerInput` as a public name, with a type: checkers cannot see what `_glt` finds."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gigl_loader._glt.classes import NodeSamplerInput as NodeSamplerInput
else:
    from gigl_loader._glt import NodeSamplerInput as NodeSamplerInput
