// Command kubernetes is the control plane of Kubernetes and its kubelet in one program, which a machine then builds and
// links once. The name under which it runs selects the program.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/pkg/controller/volume/attachdetach"
)

// controllers is kube-controller-manager. It has a flag that upstream's lacks, which lets tests wait for a shorter time
// than a node may take.
func controllers() *cobra.Command {
	c := manager.NewControllerManagerCommand()
	t := &attachdetach.DefaultTimerConfig
	c.Flags().DurationVar(&t.ReconcilerMaxWaitForUnmountDuration, "max-wait-for-unmount",
		t.ReconcilerMaxWaitForUnmountDuration, "how long a node may take to unmount volumes that no Pod needs")
	return c
}

func main() {
	commands := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllers,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	}
	name := filepath.Base(os.Args[0])
	switch command := commands[name]; {
	case name == "etcd":
		etcdmain.Main(os.Args)
	case command != nil:
		os.Exit(cli.Run(command()))
	default:
		fmt.Fprintf(os.Stderr, "error: no program of Kubernetes is %q: run this as etcd, kube-apiserver, "+
			"kube-controller-manager, kube-scheduler or kubelet\n", name)
		os.Exit(2)
	}
}
