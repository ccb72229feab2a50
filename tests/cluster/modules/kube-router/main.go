// kube-router's controller of NetworkPolicies alone: for its router and its proxy the stock program needs a kernel with
// IPVS, and links twice as much. It takes the options of the stock program, and its rules along when it ends.
package main

import (
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"github.com/cloudnativelabs/kube-router/v2/pkg/svcip"
	"github.com/spf13/pflag"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	config := options.NewKubeRouterConfig()
	config.AddFlags(pflag.CommandLine)
	pflag.Parse()
	if err := run(config); err != nil {
		log.Fatal(err)
	}
}

func run(config *options.KubeRouterConfig) error {
	access, err := clientcmd.BuildConfigFromFlags("", config.Kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		return err
	}
	services, err := svcip.NewValidator(svcip.Config{ClusterIPCIDRs: config.ClusterIPCIDRs, EnableIPv4: true})
	if err != nil {
		return err
	}
	rules, sets, err := netpol.NewIPTablesHandlers(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	namespaces := factory.Core().V1().Namespaces().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	controller, err := netpol.NewNetworkPolicyController(
		client, config, pods, policies, namespaces, &sync.Mutex{}, nil, rules, sets, services,
	)
	if err != nil {
		return err
	}

	stop := make(chan struct{})
	factory.Start(stop)
	factory.WaitForCacheSync(stop)
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		pods:       controller.PodEventHandler,
		namespaces: controller.NamespaceEventHandler,
		policies:   controller.NetworkPolicyEventHandler,
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return err
		}
	}

	beats := make(chan *healthcheck.ControllerHeartbeat)
	go func() {
		for range beats { // nobody asks whether it is well
		}
	}()
	var running sync.WaitGroup
	running.Add(1)
	go controller.Run(beats, stop, &running)

	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGINT, syscall.SIGTERM)
	<-asked
	close(stop)
	running.Wait()
	new(netpol.NetworkPolicyController).Cleanup()
	return nil
}
