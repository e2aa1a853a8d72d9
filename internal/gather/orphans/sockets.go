package orphans

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const (
	// askTime is the time limit of a request to a registration socket.
	askTime = 5 * time.Second
	// maxInfo is the size limit of the answer in bytes, maxSockets the number of sockets that are
	// asked.
	maxInfo    = 64 << 10
	maxSockets = 256
)

// Sockets returns the sockets of the drivers that are registered in a directory. A registration
// socket without an answer adds an error, and the others are returned.
func Sockets(ctx context.Context, dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for drivers: %w", err)
	}
	var out []string
	var failed []error
	for _, e := range entries {
		if e.Type()&fs.ModeSocket == 0 {
			continue
		}
		if len(out)+len(failed) == maxSockets {
			failed = append(failed, fmt.Errorf("more than %d sockets in %s: name a driver's with --csi-address",
				maxSockets, dir))
			break
		}
		socket, err := announced(ctx, filepath.Join(dir, e.Name()))
		switch {
		case err != nil:
			failed = append(failed, err)
		case socket != "":
			out = append(out, socket)
		}
	}
	return out, errors.Join(failed...)
}

// announced returns the socket of the driver behind a registration socket; "" if it is not a CSI
// driver.
func announced(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxInfo)))
	if err != nil {
		return "", fmt.Errorf("connect to %s: %w", path, err)
	}
	defer conn.Close()
	info, err := registerapi.NewRegistrationClient(conn).GetInfo(ctx, &registerapi.InfoRequest{})
	if err != nil {
		return "", fmt.Errorf("ask which driver is announced at %q: nothing answers", path)
	}
	socket := strings.TrimPrefix(info.GetEndpoint(), "unix://")
	switch {
	case info.GetType() != registerapi.CSIPlugin:
		return "", nil
	case socket == "":
		return path, nil
	case !filepath.IsAbs(socket):
		return "", fmt.Errorf("the driver announced at %q names the socket %.200q, which is not an absolute path", path,
			socket)
	}
	return socket, nil
}
