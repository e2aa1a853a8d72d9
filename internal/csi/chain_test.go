package csi_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/testkit/logged"
	"volplane.dev/volplane/internal/volume"
)

// traced writes each call as JSON.
func traced(to io.Writer) csi.Option {
	return csi.WithTrace(func(c csi.Call) {
		text, _ := json.Marshal(c)
		_, _ = to.Write(text)
	})
}

func TestSecretsStayInside(t *testing.T) {
	const secret, key, token, address = "s3cr3t/\"pass\"\n", "a", "eyJhbGciOi.tok.en", "address-of-storage"
	d := csitest.Start(t, csitest.Full())
	log := &logged.Text{}
	c := dial(t, d, traced(log))
	encoded := base64.StdEncoding.EncodeToString([]byte(secret))
	said := "mount -o password=" + secret + " failed: " + strings.TrimSpace(secret) + ", " + encoded +
		`, "s3cr3t/\"pass\"", ` + token
	d.OnCall("NodePublishVolume", always(csitest.Action{Err: status.Error(codes.Internal, said)}))
	_, err := c.NodeClient().NodePublishVolume(within(t, patience), &csipb.NodePublishVolumeRequest{
		VolumeId: "volume-7", TargetPath: "/t", Secrets: map[string]string{"password": secret, "empty": ""},
		VolumeContext: map[string]string{
			"server": address,
			"csi.storage.k8s.io/serviceAccount.tokens": `{"":{"token":"` + token +
				`","expirationTimestamp":"2030-01-01T00:00:00Z"}}`,
		},
		PublishContext: map[string]string{"device": address},
		VolumeCapability: csi.Capability(csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, false, "ext4",
			[]string{"password=" + address}),
	})
	if csi.Code(err) != codes.Internal || !strings.Contains(err.Error(), "mount -o password=*** failed") {
		t.Errorf("%v, want the driver's words without the secret", err)
	}
	text := err.Error() + csi.Describe(err) + log.String()
	for _, hidden := range []string{"s3cr3t", "pass\\\"", encoded, token} {
		if strings.Contains(text, hidden) {
			t.Errorf("%q got out: %s", hidden, text)
		}
	}
	if strings.Contains(log.String(), address) {
		t.Errorf("the log has the values of contexts: %s", log)
	}
	for _, seen := range []string{"volume-7", "NodePublishVolume", "password"} {
		if !strings.Contains(log.String(), seen) {
			t.Errorf("the log does not have %s: %s", seen, log)
		}
	}
}

// TestSecretsByTheirNames: a driver quotes secrets that it received in fields which CSI does not mark as secret.
func TestSecretsByTheirNames(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	log := &logged.Text{}
	c := dial(t, d, traced(log))
	d.OnCall("NodeStageVolume", func(_ int, req any) csitest.Action {
		return csitest.Action{Err: status.Errorf(codes.Internal, "cannot stage %v", req)}
	})
	_, err := c.NodeClient().NodeStageVolume(within(t, patience), &csipb.NodeStageVolumeRequest{
		VolumeId: "v", StagingTargetPath: "/t",
		PublishContext: map[string]string{"discoveryCHAPSecret": "hidden-1", "device": "/dev/shown-1"},
		VolumeContext: map[string]string{
			"sessionToken": "hidden-2", "useToken": "false", "secretName": "shown-2", "server": "shown-3",
		},
		VolumeCapability: csi.Capability(csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, false, "shown-4",
			[]string{"password=hidden-3", "vers=shown-5", "ro"}),
	})
	text := csi.Describe(err)
	if strings.Contains(text, "hidden-") {
		t.Error(text)
	}
	for _, seen := range []string{"shown-1", "shown-2", "shown-3", "shown-4", "shown-5", "false", `"ro"`} {
		if !strings.Contains(text, seen) {
			t.Errorf("%s is not in %s", seen, text)
		}
	}
	r := newVolume("v")
	r.Parameters = map[string]string{"apiKey": "hidden-4", "tier": "shown-6"}
	_, err = c.ControllerClient().CreateVolume(within(t, patience), r)
	if said := log.String(); err != nil || strings.Contains(said, "hidden-") || !strings.Contains(said, "shown-6") {
		t.Errorf("%v, the log has %s", err, said)
	}
}

// A secret that is a part of our own text must not change its meaning.
func TestShortSecret(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	c := dial(t, d)
	d.OnCall("CreateVolume", always(csitest.Action{Answer: &csipb.CreateVolumeResponse{}}))
	r := newVolume("v")
	r.Secrets = map[string]string{"key": "i"}
	if _, err := c.ControllerClient().CreateVolume(within(t, patience), r); csi.OutcomeOf(err) != volume.Unknown {
		t.Errorf("%v, want an unknown outcome", err)
	}
}

func TestOneCallForEachVolume(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	c := dial(t, d)
	// The calls take a while, which makes them overlap.
	linger := func(int, any) csitest.Action {
		for range 1000 {
			runtime.Gosched()
		}
		return csitest.Action{}
	}
	d.OnCall("CreateVolume", linger)
	d.OnCall("ControllerGetVolume", linger)
	var calls sync.WaitGroup
	for range 20 {
		for _, name := range []string{"a", "b"} {
			calls.Go(func() {
				if err := create(t, c, name); err != nil {
					t.Error(err)
				}
			})
			calls.Go(func() {
				if _, err := c.ControllerClient().ControllerGetVolume(t.Context(),
					&csipb.ControllerGetVolumeRequest{VolumeId: "id-" + name}); err != nil && csi.Code(err) != codes.NotFound {
					t.Error(err)
				}
			})
		}
	}
	calls.Wait()
	for _, o := range d.Overlaps() {
		t.Error(o)
	}
}

func TestBusyVolume(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	c := dial(t, d)
	arrived := make(chan struct{})
	d.OnCall("CreateVolume", func(n int, _ any) csitest.Action {
		if n > 1 {
			return csitest.Action{}
		}
		close(arrived)
		return csitest.Action{Hang: true}
	})
	long, giveUp := t.Context(), make(chan error)
	go func() {
		_, err := c.ControllerClient().CreateVolume(long, newVolume("v"))
		giveUp <- err
	}()
	<-arrived
	_, err := c.ControllerClient().CreateVolume(within(t, brief), newVolume("v"))
	if !errors.Is(err, csi.ErrBusy) || csi.Code(err) != codes.Aborted || csi.OutcomeOf(err) != volume.Unknown {
		t.Errorf("%v, want ErrBusy and an unknown outcome: the first call may still make the volume", err)
	}
	if err := create(t, c, "w"); err != nil {
		t.Errorf("another volume waits: %v", err)
	}
	d.Kill()
	if err := <-giveUp; csi.OutcomeOf(err) != volume.Unknown {
		t.Errorf("%v, want an unknown outcome", err)
	}
	d.Restart()
	if err := noticed(t, c); err != nil {
		t.Errorf("the volume is still busy: %v", err)
	}
}

func TestTraceAndFault(t *testing.T) {
	d := csitest.Start(t, csitest.Full())
	var mu sync.Mutex
	var seen []string
	first := true
	c := dial(t, d, csi.WithTrace(func(c csi.Call) {
		mu.Lock()
		defer mu.Unlock()
		if c.Method == csipb.Controller_CreateVolume_FullMethodName {
			seen = append(seen, c.Driver+" "+c.Code)
		}
	}), csi.WithFault(func(_ context.Context, driver, method string, call func() error) error {
		if driver != d.Name() && driver != "" {
			t.Errorf("the driver is %s", driver)
		}
		if method != csipb.Controller_CreateVolume_FullMethodName {
			return call()
		}
		if first {
			first = false
			return status.Error(codes.Unavailable, "before")
		}
		if err := call(); err != nil {
			t.Error(err)
		}
		return status.Error(codes.Unavailable, "after")
	}))
	for _, want := range []int{0, 1} {
		if err := create(t, c, "v"); csi.Code(err) != codes.Unavailable {
			t.Errorf("%v, want the fault", err)
		}
		if n := len(d.Volumes()); n != want {
			t.Errorf("%d volumes, want %d", n, want)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if want := slices.Repeat([]string{d.Name() + " Unavailable"}, 2); !slices.Equal(seen, want) {
		t.Errorf("traced %q, want %q", seen, want)
	}
}

func TestSet(t *testing.T) {
	s := csi.NewSet()
	var told, there []string
	cancel := s.Subscribe(func(name string) { told = append(told, name) })
	s.Subscribe(func(name string) {
		d, ok := s.Get(name)
		there = append(there, fmt.Sprint(name, " ", ok && d.Name == name))
	})
	a, b, newer := &csi.Driver{Name: "a"}, &csi.Driver{Name: "b"}, &csi.Driver{Name: "a"}
	s.Put(b)
	s.Put(a)
	s.Put(newer)
	cancel()
	cancel()
	s.Put(b)
	if want := []string{"b", "a", "a"}; !slices.Equal(told, want) {
		t.Errorf("reported %q, want %q", told, want)
	}
	s.Remove(a)
	if d, _ := s.Get("a"); d != newer {
		t.Error("removing the older driver removed the newer one")
	}
	s.Remove(newer)
	s.Remove(newer)
	if want := []string{"b true", "a true", "a true", "b true", "a false"}; !slices.Equal(there, want) {
		t.Errorf("reported as existing: %q, want %q", there, want)
	}
	if names := s.Names(); !slices.Equal(names, []string{"b"}) {
		t.Errorf("names %q, want b", names)
	}
}

// TestMeter: each call is reported with the driver's name, once that is known, and with its code.
func TestMeter(t *testing.T) {
	var mu sync.Mutex
	told := map[string]int{}
	d := csitest.Start(t, csitest.Full())
	c := dial(t, d, csi.WithMeter(func(driver, method, code string, took time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		if took <= 0 {
			t.Errorf("%s took %v", method, took)
		}
		told[strings.Join([]string{driver, method, code}, " ")]++
	}))
	d.OnCall("DeleteVolume", always(csitest.Action{Err: status.Error(codes.Internal, "broken")}))
	_, _ = c.ControllerClient().DeleteVolume(t.Context(), &csipb.DeleteVolumeRequest{VolumeId: "v"})
	mu.Lock()
	defer mu.Unlock()
	for _, want := range []string{
		" /csi.v1.Identity/Probe OK", " /csi.v1.Identity/GetPluginInfo OK",
		d.Name() + " /csi.v1.Identity/GetPluginCapabilities OK", d.Name() + " /csi.v1.Controller/DeleteVolume Internal",
	} {
		if told[want] != 1 {
			t.Errorf("%q is reported %d times in %v", want, told[want], told)
		}
	}
}

// TestConnected: a driver is connected until its socket is closed.
func TestConnected(t *testing.T) {
	c := dial(t, csitest.Start(t, csitest.Full()))
	if !c.Connected() {
		t.Error("not connected after Dial")
	}
	if err := c.Close(); err != nil || c.Connected() {
		t.Errorf("connected after Close: %v", err)
	}
}
