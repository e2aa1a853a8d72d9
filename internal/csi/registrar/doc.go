// Package registrar announces a CSI driver to the node agent of a host, a
// kubelet or volplane's own, over the plugin registration API v1.
//
// Life cycle: Run serves at a socket in the agent's directory, where the agent
// finds it, asks who is there, and says whether it takes the driver. A socket
// that is removed is made again. Run ends when it is told to, and then takes
// the socket away, by which the agent knows that the driver is gone; when the
// agent refuses the driver; or when another one announces at the same place.
package registrar
