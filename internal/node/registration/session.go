package registration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/queue"
)

// Limits of the calls of one registration. A driver may need long to know its
// node; it delays only itself.
const (
	askLimit  = 5 * time.Second
	dialLimit = 15 * time.Second
	infoLimit = 30 * time.Second
	apiLimit  = 30 * time.Second
)

// maxInfo bounds the answer to GetInfo.
const maxInfo = 64 << 10

var errInfo = errors.New("registration refused")

// session is the life of one registration socket.
type session struct {
	w    *Watcher
	path string
	log  *slog.Logger
	// socket is the identity of the socket as last seen, "" when it is gone;
	// guarded by w.mu.
	socket string
	// inbox holds the newest identity that was not looked at yet.
	inbox chan string

	driver *csi.Driver
	failed int
}

// tell replaces what waits in the inbox; w.mu is held.
func (s *session) tell(id string) {
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
			s.gone(ctx)
			continue
		}
		if err := s.register(ctx); err != nil && ctx.Err() == nil {
			pause := queue.Backoff{
				Min: cmp.Or(s.w.RetryMin, 500*time.Millisecond), Max: cmp.Or(s.w.RetryMax, 2*time.Minute),
			}.Pause(s.failed)
			s.failed++
			s.w.Refused(s.path, err)
			s.log.Warn("driver is not registered, will be tried again", "attempt", s.failed, "pause", pause, "err", err)
			retry = time.After(pause)
		}
	}
}

// close ends the connection when the agent stops. The driver stays in the
// Node's objects.
func (s *session) close() {
	if s.driver != nil {
		s.w.Drivers.Remove(s.driver)
		_ = s.driver.Close()
	}
}

// gone takes the driver out of everything (S1-009, S1-011).
func (s *session) gone(ctx context.Context) {
	d := s.driver
	if d == nil {
		return
	}
	s.w.Drivers.Remove(d)
	s.driver = nil
	if err := s.unwrite(ctx, d.Name); err != nil {
		s.log.Warn("what is written of a driver that went away stays", "driver", d.Name, "err", err)
	}
	d.Retire()
	s.w.release(d.Name, s.path)
	s.log.Info("driver went away", "driver", d.Name)
}

func (s *session) unwrite(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, apiLimit)
	defer cancel()
	return s.w.Registrar.Unregister(ctx, name)
}

// register asks who is there, registers it, and tells it the result.
func (s *session) register(ctx context.Context) error {
	conn, err := grpc.NewClient("unix:"+s.path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxInfo)))
	if err != nil {
		return fmt.Errorf("connect to %s: %w", s.path, err)
	}
	defer conn.Close()
	client := registerapi.NewRegistrationClient(conn)
	ask, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	info, err := client.GetInfo(ask, &registerapi.InfoRequest{})
	if err != nil {
		return fmt.Errorf("ask who is at %s: %w", s.path, err)
	}
	err = s.accept(ctx, info)
	answer := &registerapi.RegistrationStatus{PluginRegistered: err == nil}
	if err != nil {
		answer.Error = err.Error()
	}
	tell, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	if _, told := client.NotifyRegistrationStatus(tell, answer); told != nil && err == nil {
		// The driver works; that it cannot be told is its own loss.
		s.log.Warn("driver cannot be told that it is registered", "driver", info.GetName(), "err", told)
	}
	return err
}

// accept registers the driver that a registration names.
func (s *session) accept(ctx context.Context, info *registerapi.PluginInfo) error {
	endpoint, err := check(info, s.path)
	if err != nil {
		return err
	}
	name := info.GetName()
	if s.driver != nil && s.driver.Name != name {
		s.gone(ctx)
	}
	if err := s.w.claim(name, s.path); err != nil {
		return fmt.Errorf("%w: %w", errInfo, err)
	}
	dial, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	d, err := csi.Dial(dial, endpoint, csi.WithMemory(s.w.Memory), csi.WithHold(s.w.Hold),
		csi.WithVolumeLocks(s.w.turnsOf(name)))
	if err == nil && d.Name != name {
		_ = d.Close()
		err = fmt.Errorf("%w: the driver at %s calls itself %q, its registration says %q", errInfo, endpoint, d.Name, name)
	}
	if err != nil {
		s.forget(name)
		return err
	}
	if err := s.write(ctx, d); err != nil {
		_ = d.Close()
		s.forget(name)
		return err
	}
	before := s.driver
	s.driver = d
	s.w.Drivers.Put(d)
	if before != nil {
		// Its calls may be with the process that has registered now: it would
		// work on what is asked of it again.
		before.Retire()
	}
	s.log.Info("driver registered", "driver", d.Name, "version", d.Version)
	return nil
}

// forget gives the name free for another socket, unless the driver that this
// socket registered earlier still works.
func (s *session) forget(name string) {
	if s.driver == nil {
		s.w.release(name, s.path)
	}
}

// write asks the driver about its node and writes the answer. When the driver
// does not know its node, what was written of it earlier must go (S1-008).
func (s *session) write(ctx context.Context, d *csi.Driver) error {
	ask, cancel := context.WithTimeout(ctx, infoLimit)
	defer cancel()
	info, err := d.NodeInfo(ask)
	if err != nil {
		return errors.Join(err, s.unwrite(ctx, d.Name))
	}
	api, cancel := context.WithTimeout(ctx, apiLimit)
	defer cancel()
	return s.w.Registrar.Register(api, d.Name, info)
}

// check refuses what cannot be a CSI driver, and returns the driver's socket.
func check(info *registerapi.PluginInfo, path string) (string, error) {
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
