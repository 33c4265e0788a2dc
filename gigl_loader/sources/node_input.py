"""`NodeSamplerInput` as a public name with a type: checkers cannot see what `glt_classes` finds."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gigl_loader.runtime.glt_classes.classes import NodeSamplerInput as NodeSamplerInput
else:
    from gigl_loader.runtime.glt_classes import NodeSamplerInput as NodeSamplerInput
