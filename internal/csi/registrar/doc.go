// Package registrar registers a CSI driver with the node agent of a host, a kubelet or volplane's
// own, over the plugin registration API v1.
//
// Life cycle: Run serves a registration socket in the agent's directory. The agent discovers the socket, asks for the
// driver's name and endpoint, and reports whether it accepts the driver. A socket that was removed is created again.
// Run ends when its context ends, and removes the socket, which shows the agent that the driver is gone; when the agent
// refuses the driver; or when another registrar uses the same path.
package registrar
