"""The methods of maps that can be asked for. Importing this file is cheap: the command line shows them in its help."""

METHODS = {
    "relevance": "gradient-weighted relevance (Chefer et al. 2021)",
    "rollout": "attention rollout (Abnar and Zuidema 2020)",
    "grad-cam": "Grad-CAM (Selvaraju et al. 2017), of the map of the last convolution or window, before pooling",
}
