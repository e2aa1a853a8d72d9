package csitest

import (
	"context"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Registration is a driver's socket for a node agent to find it by.
type Registration struct {
	registerapi.UnimplementedRegistrationServer

	// Socket is its path.
	Socket string
	// Told receives what the agent says of the registration, as long as there
	// is room for it.
	Told chan *registerapi.RegistrationStatus

	driver *Driver
	server *grpc.Server
}

// Register serves the plugin registration API at a socket in dir until End or
// the end of the test.
func (d *Driver) Register(dir string) *Registration {
	d.t.Helper()
	r := &Registration{
		Socket: filepath.Join(dir, d.Name()+"-reg.sock"), driver: d, server: grpc.NewServer(),
		Told: make(chan *registerapi.RegistrationStatus, 100),
	}
	listener, err := listen(r.Socket)
	if err != nil {
		d.t.Fatal(err)
	}
	registerapi.RegisterRegistrationServer(r.server, r)
	go func() { _ = r.server.Serve(listener) }()
	d.t.Cleanup(r.End)
	return r
}

// End takes the socket away. It may be repeated.
func (r *Registration) End() {
	r.server.Stop()
	_ = os.Remove(r.Socket)
}

// GetInfo tells who the driver is.
func (r *Registration) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{
		Type: registerapi.CSIPlugin, Name: r.driver.Name(), Endpoint: r.driver.Socket, SupportedVersions: []string{"1.0.0"},
	}, nil
}

// NotifyRegistrationStatus passes on what the agent says.
func (r *Registration) NotifyRegistrationStatus(_ context.Context, s *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	select {
	case r.Told <- s:
	default:
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}
