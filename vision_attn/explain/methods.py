"""The names of the methods that make maps, for the help of the command line as well, so this file imports nothing
slow."""

METHODS = {
    "relevance": "gradient-weighted relevance (Chefer et al. 2021)",
    "rollout": "attention rollout (Abnar and Zuidema 2020)",
    "attention-gradient": "attention times its gradient, the mean of all layers (Chefer et al. 2021, eq. 5)",
    "grad-cam": "Grad-CAM (Selvaraju et al. 2017), of the map of the last convolution or window, before pooling",
    "layer-cam": "Layer-CAM (Jiang et al. 2021), of the same map",
    "score-cam": "Score-CAM (Wang et al. 2020), of the same map; takes a forward pass per channel",
    "integrated-gradients": "Integrated Gradients (Sundararajan et al. 2017), from an image of zeros; needs captum",
    "smoothgrad": "SmoothGrad (Smilkov et al. 2017); needs captum",
    "occlusion": "by how much the answer falls without each region (Zeiler and Fergus 2014)",
}
EXTRA = ("integrated-gradients", "smoothgrad")
"""The methods that need captum."""
ATTRIBUTIONS = (*EXTRA, "score-cam", "occlusion")
"""The methods that only need scores or gradients, so they work for any architecture."""
CAMS = ("grad-cam", "layer-cam", "score-cam")
"""The methods that need a map of features."""
