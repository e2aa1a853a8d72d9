package registrar

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// ErrNoSocket says that a driver has no registration socket.
var ErrNoSocket = errors.New("registration socket does not exist")

// Check asks the registration socket of a driver in a directory for the name of its driver, as a node agent does. It
// fails with ErrNoSocket, or with another error if the answer is invalid. It may be repeated.
func Check(ctx context.Context, dir, driver string) error {
	path := Path(dir, driver)
	switch file, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return ErrNoSocket
	case err != nil:
		return err
	case file.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is not a socket", path)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("error connecting to node-registrar socket %s: %w", path, err)
	}
	defer conn.Close()
	client, err := grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithReadBufferSize(connectionBuffer), grpc.WithWriteBufferSize(connectionBuffer),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxRequest)),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return conn, nil }))
	if err != nil {
		return fmt.Errorf("error connecting to node-registrar socket %s: %w", path, err)
	}
	defer client.Close()
	info, err := registerapi.NewRegistrationClient(client).GetInfo(ctx, &registerapi.InfoRequest{})
	if err != nil {
		return fmt.Errorf("error getting info from node-registrar socket: %w", err)
	}
	if info.GetName() != driver {
		return fmt.Errorf("invalid driver name %.80q", info.GetName())
	}
	return nil
}
