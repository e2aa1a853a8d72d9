package csitest

import (
	"path/filepath"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// ControllerSocket serves the driver's identity and controller at a socket of their own, as a driver does that runs
// in two processes, until the test ends. It says the same capabilities there, and has no node service.
func (d *Driver) ControllerSocket() string {
	return d.serveAlone("controller.sock", func(s *grpc.Server) { csipb.RegisterControllerServer(s, d) })
}

// NodeSocket serves the driver's identity and node service at a socket of their own. What it says of itself includes
// CONTROLLER_SERVICE, if the driver has that, but there is no controller: that is how most drivers in two processes
// answer.
func (d *Driver) NodeSocket() string {
	return d.serveAlone("node.sock", func(s *grpc.Server) { csipb.RegisterNodeServer(s, d) })
}

func (d *Driver) serveAlone(name string, register func(*grpc.Server)) string {
	d.t.Helper()
	path := filepath.Join(shortDir(d.t), name)
	listener, err := listen(path)
	if err != nil {
		d.t.Fatal(err)
	}
	server := d.newServer()
	register(server)
	go func() { _ = server.Serve(listener) }()
	d.t.Cleanup(server.Stop)
	return path
}

// newServer returns a server of the driver's identity.
func (d *Driver) newServer() *grpc.Server {
	server := grpc.NewServer(grpc.UnaryInterceptor(d.intercept), grpc.ForceServerCodecV2(rawCodec{}))
	csipb.RegisterIdentityServer(server, d)
	return server
}
