package provisioner

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/story"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/kube"
)

const (
	driverName = "d.example"
	gib        = 1 << 30
)

// TestSteps: what the provisioner does step by step, by itself, and when it is killed. With the option keys=shown a
// script shows which keys the controller looks at; with keys=only it does nothing else.
func TestSteps(t *testing.T) {
	config := driverConfig()
	story.Run(t, "testdata/steps", func(s *story.Scene) story.Cast {
		requests := controller.NewRequests()
		return story.Cast{
			Controller: func(env controller.Env) *controller.Controller {
				c := New(env, chosen(s, requests))
				showKeys(s, c)
				return c
			},
			Commands: map[string]func([]string) error{
				// ask UID DRIVER: a binder of the same process asks for the volume of a claim
				"ask": func(args []string) error { requests.Ask(types.UID(args[0]), args[1]); return nil },
				// asked UID…: what the binder has asked for; served DRIVER…: whether it may ask
				"asked": func(args []string) error {
					for _, uid := range args {
						s.Note(uid + " is asked of " + strconv.Quote(requests.Asked(types.UID(uid))))
					}
					return nil
				},
				"served": func(args []string) error {
					for _, driver := range args {
						s.Note(driver + " is served: " + strconv.FormatBool(requests.Served(driver, "")))
					}
					return nil
				},
			},
			Driver: &config,
			Usual:  []proto.Message{asksFor("c"), &csipb.DeleteVolumeRequest{VolumeId: "id-pvc-u-c"}},
			Given:  []string{"class"}, Names: []string{"pv"}, Lazy: "configmaps", Tells: intentsOf,
		}
	})
}

// chosen returns the options of a script.
func chosen(s *story.Scene, requests *controller.Requests) Options {
	o := Options{
		Drivers: s.Drivers, Requests: requests, Intents: oneLog(), Identity: s.Option("identity"),
		Protects: s.Option("protects") != "", Attaches: s.Option("attaches") != "", Selects: s.Option("selects") != "",
	}
	o.Choices.NamePrefix, o.Choices.DefaultFSType = s.Option("prefix"), s.Option("fstype")
	o.Choices.OtherNamespaces = s.Option("namespaces") == "others"
	o.Choices.NameLength, _ = strconv.Atoi(s.Option("length"))
	switch logs, node, _ := strings.Cut(s.Option("logs"), "/"); logs {
	case "standalone":
		o.Intents = Standalone()
	case "host":
		o.Intents = OnHost(node)
	case "heir":
		o.Intents = OnHost(node)
		o.Intents.Inherited = []kube.LogPlace{Standalone().Own}
	}
	return o
}

// showKeys has a script show the keys that a controller looks at, if it wants that.
func showKeys(s *story.Scene, c *controller.Controller) {
	keys, do := s.Option("keys"), c.Reconcile
	if keys == "" {
		return
	}
	c.Reconcile = func(ctx context.Context, k controller.Key) (controller.Result, error) {
		s.Note("look " + k.String())
		if keys == "only" {
			return controller.Result{}, nil
		}
		return do(ctx, k)
	}
}

// intentsOf says whose intents a part of a log has.
func intentsOf(o runtime.Object) string {
	log, ok := o.(*corev1.ConfigMap)
	if !ok {
		return ""
	}
	var claims []string
	for uid, text := range log.Data {
		if in, err := provision.ParseIntent(text); err == nil && string(in.Claim.UID) == uid && !in.Begun.IsZero() {
			claims = append(claims, uid)
		}
	}
	slices.Sort(claims)
	return "intents of " + strings.Join(claims, ", ")
}

// driverConfig is that of a driver that can create, clone and restore volumes and has no topology.
func driverConfig() csitest.Config {
	config := csitest.Full()
	config.Name, config.Controller.Snapshot, config.Snapshots = driverName, true, []string{"shot"}
	config.Plugin.AccessibilityConstraints, config.Segments = false, map[string]string{"zone": "b"}
	return config
}

// oneLog returns the logs of a process that has one.
func oneLog() Logs { return Logs{Own: Standalone().Own} }

// asksFor is the whole request for a claim that wants nothing special.
func asksFor(name string) *csipb.CreateVolumeRequest {
	return &csipb.CreateVolumeRequest{
		Name: "pvc-u-" + name, CapacityRange: &csipb.CapacityRange{RequiredBytes: gib},
		VolumeCapabilities: []*csipb.VolumeCapability{{
			AccessType: &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{}},
			AccessMode: &csipb.VolumeCapability_AccessMode{Mode: csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		}},
	}
}
