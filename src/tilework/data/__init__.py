"""Image and token sources, their order, and batches."""

from tilework.data.dataset import TokenDataset
from tilework.data.image_files import Broken, decode_image
from tilework.data.image_folder import ImageFolder
from tilework.data.images import ImageSource
from tilework.data.label_maps import LabelMaps
from tilework.data.loader import Loader, in_order
from tilework.data.order import epoch_order
from tilework.data.part import Chosen, Part
from tilework.data.source import Source
from tilework.data.tokens import TokenSource
from tilework.data.whole_images import RandomCrops, WholeImages
