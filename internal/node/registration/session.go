package registration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/process/queue"
)

// Time limits of the calls of one registration. A driver may need long to answer NodeGetInfo; it delays only itself.
const (
	askTimeout  = 5 * time.Second
	dialTimeout = 15 * time.Second
	infoTimeout = 30 * time.Second
	apiTimeout  = 30 * time.Second
)

// maxInfo bounds the size of an answer.
const maxInfo = 64 << 10

// maxLost is how often in a row a driver may be lost when its controller is called. Once may be chance; after that it
// is no longer called, because each call ends it.
const maxLost = 2

var (
	errInfo = errors.New("registration refused")
	// errUnasked says that the socket did not respond; it may have been seen before its process listens.
	errUnasked = errors.New("no answer")
	errGone    = errors.New("the process that was asked is gone")
)

// session registers the driver behind one registration socket.
type session struct {
	w    *Watcher
	path string
	log  *slog.Logger
	// socket is the identity of the socket in the last scan, "" if it is gone; guarded by w.mu.
	socket string
	// inbox holds the newest identity that is not processed yet.
	inbox chan string

	// driver is the registered driver, or nil.
	driver *csi.Driver
	// failed counts the failures since the socket has changed.
	failed int
	// refused is the driver whose refusal was reported; empty if the refusal is over.
	refused string
	// lost counts how often in a row the driver was lost when its controller was called. It outlives the socket, which a
	// registrar creates again with each start of the driver.
	lost int
	// name is the name that the driver at the socket has last said.
	name string
}

// notify replaces the identity in the inbox; w.mu is held.
func (s *session) notify(id string) {
	select {
	case <-s.inbox:
	default:
	}
	s.inbox <- id
}

func (s *session) run(ctx context.Context) {
	var retry <-chan time.Time
	defer s.close()
	for {
		present := true
		select {
		case <-ctx.Done():
			return
		case id := <-s.inbox:
			present, s.failed = id != "", 0
		case <-retry:
		}
		retry = nil
		if !present {
			s.unregister(ctx)
			s.acquit(ctx)
			continue
		}
		err := s.register(ctx)
		if err == nil {
			s.acquit(ctx)
		} else if ctx.Err() == nil {
			pause := queue.Backoff{
				Min: cmp.Or(s.w.RetryMin, 500*time.Millisecond), Max: cmp.Or(s.w.RetryMax, 2*time.Minute),
			}.Pause(s.failed)
			level := slog.LevelDebug
			if s.failed++; s.failed > 1 || !errors.Is(err, errUnasked) {
				level = slog.LevelWarn
				s.refuse(ctx, err)
			}
			s.log.Log(ctx, level, "driver is not registered, will be retried",
				"attempt", s.failed, "pause", pause, "err", err)
			retry = time.After(pause)
		}
	}
}

// refuse reports why the driver is not registered. A driver whose name is not known yet is named after its socket.
func (s *session) refuse(ctx context.Context, err error) {
	name := cmp.Or(s.name, strings.TrimSuffix(strings.TrimSuffix(filepath.Base(s.path), ".sock"), "-reg"))
	if s.refused != name {
		s.acquit(ctx)
	}
	s.refused = name
	s.w.Refused(ctx, s.path, name, err)
}

// acquit reports that the driver is no longer refused.
func (s *session) acquit(ctx context.Context) {
	if s.refused != "" {
		s.w.Refused(ctx, s.path, s.refused, nil)
	}
	s.refused = ""
}

// close ends the connection when the agent stops. The driver stays in the Node's objects.
func (s *session) close() {
	if s.driver != nil {
		s.w.Drivers.Remove(s.driver)
		_ = s.driver.Close()
	}
}

// unregister removes the driver from the set of drivers and from the Node's objects (S1-009, S1-011).
func (s *session) unregister(ctx context.Context) {
	d := s.driver
	if d == nil {
		return
	}
	s.w.Drivers.Remove(d)
	s.driver = nil
	if err := s.unregisterNode(ctx, d.Name); err != nil {
		s.log.Warn("driver cannot be removed from the node's objects", "driver", d.Name, "err", err)
	}
	d.Retire()
	s.w.release(d.Name, s.path)
	s.log.Info("driver is gone", "driver", d.Name)
}

func (s *session) unregisterNode(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	return s.w.Registrar.Unregister(ctx, name)
}

// connect returns a connection to the registration socket that is made only once: the process that was asked also
// receives the result, not a process that has replaced it since.
func (s *session) connect() (*grpc.ClientConn, error) {
	var used atomic.Bool
	return grpc.NewClient("passthrough:///localhost", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxInfo)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			if used.Swap(true) {
				return nil, errGone
			}
			return new(net.Dialer).DialContext(ctx, "unix", s.path)
		}))
}

// register reads the driver's name, registers the driver, and reports the result to it.
func (s *session) register(ctx context.Context) error {
	conn, err := s.connect()
	if err != nil {
		return fmt.Errorf("connect to %s: %w", s.path, err)
	}
	defer conn.Close()
	client := registerapi.NewRegistrationClient(conn)
	ask, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var said metadata.MD
	info, err := client.GetInfo(ask, &registerapi.InfoRequest{}, grpc.Header(&said))
	if err != nil {
		return fmt.Errorf("ask for the driver at %s: %w: %w", s.path, errUnasked, err)
	}
	s.name = info.GetName()
	err = s.accept(ctx, info, len(said.Get(csi.HeaderNodeOnly)) > 0)
	answer := &registerapi.RegistrationStatus{PluginRegistered: err == nil}
	if err != nil {
		answer.Error = err.Error()
	}
	tell, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if _, told := client.NotifyRegistrationStatus(tell, answer); told != nil && err == nil {
		// The registration is valid nevertheless.
		s.log.Warn("driver cannot be notified of its registration", "driver", info.GetName(), "err", told)
	}
	return err
}

// accept registers the driver that info describes; nodeOnly means that its controller is elsewhere.
func (s *session) accept(ctx context.Context, info *registerapi.PluginInfo, nodeOnly bool) error {
	endpoint, err := endpointOf(info, s.path)
	if err != nil {
		return err
	}
	name := info.GetName()
	if s.driver != nil && s.driver.Name != name {
		s.unregister(ctx)
	}
	if err := s.w.claim(name, s.path); err != nil {
		return fmt.Errorf("%w: %w", errInfo, err)
	}
	d, err := s.dial(ctx, name, endpoint, nodeOnly)
	if err != nil {
		s.releaseUnused(name)
		return err
	}
	if err := s.registerNode(ctx, d); err != nil {
		_ = d.Close()
		s.releaseUnused(name)
		return err
	}
	before := s.driver
	s.driver = d
	s.w.Drivers.Put(d)
	if before != nil {
		// The new connection may lead to the same process, in which calls of the old one may be in flight.
		before.Retire()
	}
	s.log.Info("driver registered", "driver", d.Name, "version", d.Version)
	return nil
}

// dial connects to the driver. If the place of its controller is unknown, dial calls the controller at this socket,
// unless the driver has died of that call before.
func (s *session) dial(ctx context.Context, name, endpoint string, nodeOnly bool) (*csi.Driver, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	options := append(slices.Clone(s.w.Dial), csi.WithMemory(s.w.Memory), csi.WithHold(s.w.Hold),
		csi.WithVolumeLocks(s.w.locksOf(name)), csi.WithExpectedName(name))
	if nodeOnly || s.lost >= maxLost {
		options = append(options, csi.WithNodeOnly())
	}
	d, err := csi.Dial(ctx, endpoint, options...)
	switch {
	case errors.Is(err, csi.ErrControllerLost):
		if s.lost++; s.lost == maxLost {
			s.log.Warn("the driver ends when it is asked for its controller, and is not asked again until this agent "+
				"restarts: it is treated as the node process of a driver that has several", "driver", name)
		}
	case err == nil && s.lost < maxLost:
		s.lost = 0
	}
	if err == nil && d.Name != name {
		err = errors.Join(fmt.Errorf("%w: the driver at %s calls itself %q, its registration says %q",
			errInfo, endpoint, d.Name, name), d.Close())
	}
	return d, err
}

// releaseUnused releases the name for other sockets, unless an earlier registration by this socket is still valid.
func (s *session) releaseUnused(name string) {
	if s.driver == nil {
		s.w.release(name, s.path)
	}
}

// registerNode calls NodeGetInfo and writes the answer to the Node's objects. If the call fails, it
// removes the earlier answer (S1-008).
func (s *session) registerNode(ctx context.Context, d *csi.Driver) error {
	ask, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	info, err := d.NodeInfo(ask)
	if err != nil {
		return errors.Join(err, s.unregisterNode(ctx, d.Name))
	}
	api, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	return s.w.Registrar.Register(api, d.Name, info)
}

// endpointOf returns the driver's socket. It refuses a plugin that is not a CSI driver.
func endpointOf(info *registerapi.PluginInfo, path string) (string, error) {
	if info.GetType() != registerapi.CSIPlugin {
		return "", fmt.Errorf("%w: %s is of type %.40q, only %s is known here", errInfo, path, info.GetType(),
			registerapi.CSIPlugin)
	}
	isV1 := func(v string) bool { return v == "1" || strings.HasPrefix(v, "1.") || strings.HasPrefix(v, "v1.") }
	if v := info.GetSupportedVersions(); !slices.ContainsFunc(v, isV1) {
		return "", fmt.Errorf("%w: %s speaks none of the CSI versions 1.x", errInfo, path)
	}
	endpoint := strings.TrimPrefix(info.GetEndpoint(), "unix://")
	if endpoint == "" {
		return path, nil
	}
	if !filepath.IsAbs(endpoint) || filepath.Clean(endpoint) != endpoint {
		return "", fmt.Errorf("%w: %s names the endpoint %.200q, which is not an absolute path", errInfo, path, endpoint)
	}
	return endpoint, nil
}
