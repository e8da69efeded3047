//! Routing with the one question that a message may put to the broker: whose command a result answers.

use super::context::Context;
use super::decode::Defect;
use super::route::{Outcome, Routed};
use crate::kernel::envelope::EffectCommand;
use crate::kernel::ids::{InstanceId, TenantId};
use crate::kernel::input::{SourceStream, WorkResult};
use crate::kernel::subject::Subject;
use crate::ports::broker::{BrokerError, Message};

/// Appends what `message` yields.
///
/// # Errors
/// The broker did not answer: nothing was appended, and the message is to be read again.
pub(super) async fn route(
    ctx: &Context,
    stream: SourceStream,
    message: &Message,
    out: &mut Vec<Routed>,
) -> Result<(), BrokerError> {
    let (tenant, result) = match ctx.router.route(stream, message, out) {
        Outcome::Routed => return Ok(()),
        Outcome::Unclaimed => {
            ctx.metrics.events_unclaimed.inc();
            return Ok(());
        }
        Outcome::Unaddressed { tenant, result } => (tenant, result),
    };
    if let Some(instance) = instance_of(ctx, &tenant, &result).await? {
        ctx.router.route_result(stream, instance, result, message, out);
    } else {
        let text = format!("command {} is not known", result.command_id);
        let defect = Defect::new("result.orphan", text);
        ctx.router.refuse((tenant, defect), message, out);
    }
    Ok(())
}

async fn instance_of(
    ctx: &Context,
    tenant: &TenantId,
    result: &WorkResult,
) -> Result<Option<InstanceId>, BrokerError> {
    let Some(effect) = result.effect.clone() else {
        return Ok(None);
    };
    let subject = Subject::Effect {
        tenant: tenant.clone(),
        effect,
        command: result.command_id,
    };
    let commands = ctx.name(SourceStream::WorkflowCommands);
    let stored = ctx.broker.last_by_subject(commands, &subject.render()).await?;
    let command = stored
        .as_ref()
        .and_then(|stored| serde_json::from_slice::<EffectCommand<'_>>(&stored.payload).ok());
    Ok(command.map(|command| InstanceId {
        tenant: tenant.clone(),
        saga: command.metadata.saga,
        key: command.metadata.key,
    }))
}
